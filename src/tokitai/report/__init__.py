"""A page for people from any number of certificates: what was verified, where, and why one may believe it.

`read` opens certificates and checks each, `content` takes from them what is shown, `pictures` draws it, `page` puts it
into one HTML file. Nothing in a certificate is trusted: one that contradicts itself is shown as invalid, and text from
it is text on the page, whatever it holds.
"""

from .content import Content, State, gather
from .page import build, write
from .read import Certificate, certificates, read

__all__ = ["Certificate", "Content", "State", "build", "certificates", "gather", "read", "write"]
