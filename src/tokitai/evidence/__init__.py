"""Evidence: what a verification showed, as a certificate that others can check.

`statement` produces certificates, `sign` puts them into signed envelopes, `check` checks them with the standard library
alone, `render` makes them readable. Producer and checker are apart on purpose: a checker that shared code with the
producer would share its mistakes.
"""
