"""Mutants that do what the right program does, and why: no verification can refute them."""

from __future__ import annotations

import math
import re
from itertools import product

from tests.mutants.program import Mutant
from tokitai.families import make_plan
from tokitai.lang import Graph, Node, Operator, Sizes

SAME_CODE = "the compiler makes the same machine code of it as of the right program"
REASONS: dict[str, tuple[str, ...]] = {
    "it says what is fetched into a cache beforehand, and nothing is read from there but what would be read anyway": (
        r".*: .*\bprefetch\(.*", r".*: .*_next = .*", r".*: fetch_panel\(.*", r".*: if \([^;]*\) fetch\(.*",
        r".*: soon\(c\);",
        r".*: if \(q >= n_panels\) q -= ceil_div\(n_panels, at_once\) \* at_once, k \+= DEPTH;",
    ),
    "it decides whether stores pass the caches by, which changes no bit": (
        r".*: const bool \w+_streams = .*",
        r"(rows|cols) [+-] 1: return LANES > 1 && !misaligned && .* >= STREAM_BYTES;",
    ),
    "it orders stores that pass the caches by before later ones of this thread; threads that meet wait for both": (
        r"left out: finish_stores\(\);",
    ),
    "one block or row more is empty: its bounds are those of the last row": (
        r"rows \+ 1: const int64_t blocks = \(rows \+ 0\) / 1;",
        r"blocks \+ 1: for \(int64_t block = 0; block < blocks; .*",
        r"rows \+ 1: const int64_t end = min\(rows, \(block \+ 1\) \* 1\);",
    ),
    "a row is computed twice, to the same bits": (
        r"block \+ 1: const int64_t end = min\(rows, \(block \+ 1\) \* 1\);",
    ),
    "a thread's room is larger than it needs, by more than one number": (
        r"cols [+-] 1: Stored\* const (scratch|partial) = .*",
        r"(rows|cols|k_size|batch|threads) \+ 1: const Buffers buffers\(.*",
    ),
    "the next part begins one number later, and the last one has room for many more than it needs": (
        r"blocks \+ 1: Stored\* const private_space = .*",
    ),
    "the search goes on one by one from where it begins, behind the same first tile": (
        r"count [+-] 1: const int64_t tensor = tensor_of\(first_tile, count, tile\);",
    ),
    "it reads one element behind an input, on which no result depends: what certificates say they do not look for": (
        r"count \+ 1: row_\w+\.read\(in_\w+ \+ r0, count\);",
        r"cols \+ 1: each\(0, cols, .* store\(wide_(\w+) \+ c, load\(in_\1 \+ c, lanes\), lanes\); \}\);",
    ),
    "one piece of columns, or one window of rows, more is empty": (
        r"(cols \+|c0 -) 1: for \(int64_t c0 = 0; c0 < cols; c0 \+= \d+\) \{",
        r"(rows \+|window -) 1: for \(int64_t window = 0; window < windows_of\(rows\); \+\+window\) \{",
    ),
    "it is noted for totals, which a kernel where it survives has none of": (
        r"(tiles|i) [+-] 1: if \(tiles\) filled\[fill\+\+\] = i;",
        r"(count \+|i -) 1: for \(int64_t i = 0; i < count; \+\+i\) \{",
    ),
    "how many threads share the work, and in which parts, changes no bit": (
        r"threads [+-] 1: each_(product|task)\b.*", r"rows [+-] 1: each_task<true>\(.*",
        r"k_size [+-] 1: each_task<false>\(.*",
        r"(tile_n|tile_m|k_size|longest) [+-] 1: while \(double\(tile_m\) .*",
        r"(tile_n|tile_m) [+-] 1: if \(tile_n > FEW_COLS && \(tile_n > tile_m .*",
        r"n_panels \+ 1: const int64_t cuts = blocks < team\.size \? min\(n_panels, .*",
        r"blocks \+ 1: blocks = min\(ceil_div\(blocks, team\.size\) \* team\.size, m_panels\);",
        r"longest \+ 1: for \(int64_t g = 0; g < groups; \+\+g\) longest = max\(longest, .*",
    ),
    "no kernel is launched where there are no rows": (
        r"tile_m \+ 1: for \(int64_t g = 0; g < groups; \+\+g\) tasks \+= tile_m \? .*",
    ),
    "a thread takes tasks in rising order, as the runtime of the compiler deals them out": (
        r"first - 1: if \(t < first\) group = first = 0;",
    ),
    "where it survives nothing is on its way: a row behind the last one of a block is not fetched": (
        r"left out: wait_for_copies<0>\(\);",
    ),
    "it changes no value: the compiler is only to compute what was made of the row again": (
        r"left out: rematerialize\(.*",
    ),
    "what is read ahead behind the last row is not used": (
        r"(rows|r|row) [+-] 1: load_chunk<WIDTH, FIT>\((next|ahead)_\w+(\[d\])?\[v\], .*min\(.*, rows - 1\).*",
    ),
}  # fmt: skip


UNUSED = "the value is used nowhere"
BEHIND = (
    "it reads elements behind a row of an input, on which no result depends: what certificates say they do not look for"
)
NOT_LIVE = "a thread without a row reads the row behind the last one, and stores nothing"
TWICE = "a thread without a row computes the last one again, to the same bits, and nothing that it reads is replaced"
TWICE_A_BLOCK = "threads without a block of rows compute the last one again, to the same bits"
NO_COLUMNS = "it matters only to rows without columns, which the operator does not take, or of which there is no result"
OTHER_COLUMN = "it reads another element for rows whose result does not depend on what is read there"
ONE_PRODUCT = "an operator takes one product: its number is 0, as is the distance to a next one"
OTHER_ORDER = "the same elements are computed in another order"
ONE_ITEM = "there is one product there, whose number is 0"
EVEN = "parts of a side are larger: what is left for the last ones is less, or nothing"
ODD = "the place is odd there: half of one less is the same whole number"
NOT_READ = "the sum of one block more is stored in a place that nothing reads"
ALL_ROWS = "it is about how many rows there are in all, which nothing reads, or adds to what is written afterwards"
BY_VECTORS = "it is counted by vectors, of several elements: one more is below the same multiple of them"
ROUNDED = "it is a multiple of what it is divided by: one more gives the same whole number"
NOT_ADDED = "for rows behind the last one nothing is added"
NO_COLUMN = "a thread without a column reads what is behind the last one, and stores nothing"
NOT_USED = "what it reads for a row behind the last one is not used"
NEXT_PIECE = "what it stores for a piece more is replaced by that piece's results, or lies behind the last column"
BESIDE = "a piece of memory is larger than it needs, and all pieces fit into the workspace nevertheless"
BEFORE_OUTPUT = "what lies before is a tile, which is made anew before it is read"
NOT_MASKED = "a condition is tested where it holds for all"
NOT_STORED = "a piece of the K dimension more is computed, and not stored"
NO_TURN = "there is no turn behind the last one"
NEUTRAL = "a chunk behind the last column is folded: all of its elements are neutral, and so is their sum"
ONE_ROW = "an operator on lists takes each tensor as one row"
EVEN_PIECES = "all pieces have an even number of elements: with one less they are rounded up to the same"
ONE_FINITE = "an element more is asked whether it is finite: the way for what is not has the same bits"
SCALED_BEHIND = "a line behind the last one gets a scale, and no result is made of that line"
NO_LINES = "a range of lines more is empty: it begins behind the last one"
WHOLE_STEP = "a whole step is copied before it is computed, to the same values"
BESIDE_ZERO = "behind the last product the other operand is zero: so is the product, or the step is computed without it"
SHOWN = "it matters only to rows without columns, which no input has an element of: their results are those of a case"
ADDED = "without columns a sum is -0 in place of +0, and is added to what is never -0"
MARKED = {  # the changed number in angle quotes
    ODD: r"-1 begin = long_segment\(«slot» / 2, .*",
    NOT_READ: r"(\+1 return («stop» - start > CHAIN && begin < stop|stop - start > CHAIN && begin < «stop»)"
              r"|-1 return stop - «start» > CHAIN && begin < stop);",
    ALL_ROWS: r"-1 for \(int64_t e = 0; e < «entries» \+ 2; \+\+e\) starts\[e\] = 0;"
              r"|\+1 for \(int64_t e = 0; e < «entries»; \+\+e\) starts\[e \+ 2\] \+= starts\[e \+ 1\];",
    ROUNDED: r"\+1 store\(partial \+ k \* capacity \+ «c» / JOINED, .*",
    BY_VECTORS: r"\+1 for \(int64_t (\w+) = .*; «\1» < (GROUP \* )?NR; \1 \+= LANES\) .*",
    EVEN: r"-1 auto even = .* ceil_div\(ceil_div\(side, parts\), «panel»\) \* panel; \};",
    NOT_MASKED: r"\+1 if \(limits\.min < min\((«c0» \+ \w+, cols|c0 \+ \w+, «cols»)\)\) weigh<true>\(.*",
    NOT_STORED: r"(\+1 if \(d0 \+ p \* COLS >= «k_size»|-1 if \((«d0» \+ p|d0 \+ «p») \* COLS >= k_size)\) continue;",
    EVEN_PIECES: r"-1 size \+= round_up\(«count», 16\);",
    ONE_FINITE: r"\+1 for \(int64_t i = 0; i < «count»; \+\+i\) zero \+= x\[i\] \* 0\.0f;",
    SCALED_BEHIND: r"(-1 for \(int64_t i = 0; «i» < count|\+1 for .*; i < «count»); \+\+i\) first\[i\] = .*",
    NO_LINES: r"\+1 for \(int64_t g = team\.rank; g < ceil_div\(«n_panels», STRIP\) \* N; .*",
    WHOLE_STEP: r"-1 if \(«n» < UNIT_STEP\) \{",
    BESIDE_ZERO: r"\+1 for \(int at = 0; .* (left|right)_end\[at\] = at < «n» \* .*",
    NO_TURN: r"\+1 const uint32_t ends\[3\] = \{units, units \+ filled, («units» \+ filled|units \+ «filled») \+ 1\};",
}  # fmt: skip
FOLDED = (
    r"(\+1 \w+\[\d\]\[v\] = c0 < «cols»|-1 \w+\[\d\]\[v\] = «c0» < cols) "
    r"\? fold<(\w+), CHUNK>\((\w+)\) : \2::neutral\(\);"
)
LOAD = r"(?:load_chunk<WIDTH, \w+(?:, REUSED)?>|stage_\w+\.template fetch<WIDTH, \w+>)\("


def _is_added(graph: Graph, node: Node) -> bool:
    """Whether a value is an addend of what is never -0, and nothing else."""

    def never_minus_zero(other: Node) -> bool:
        if other.op == "where":
            return all(map(never_minus_zero, other.args[1:]))
        if other.op == "const":
            return math.copysign(1.0, float(other.data[0])) > 0  # type: ignore[arg-type]
        return other.op == "call" and str(other.data[0]).startswith("exp")

    users = [n for n in graph.nodes if node in n.args]
    addends = [a for n in users for a in n.args if a is not node]
    others = all(n.op == "add" and n.args.count(node) == 1 for n in users) and all(map(never_minus_zero, addends))
    return bool(users) and others and all(o.node is not node for o in graph.outputs)


def why_surely(mutant: Mutant, source: str, operator: Operator, graph: Graph) -> str | None:
    """The reason of a mutant that need not be run; None where there is none."""
    if _is_unused(mutant, source):
        return UNUSED
    marked = _marked(mutant, source)
    if (index := re.fullmatch(r"[+-]1 const int64_t v(\d+) = where\(v\d+, v\d+, «v\d+»\);", marked)) is not None:
        return OTHER_COLUMN if _is_chosen_in_vain(graph, graph.nodes[int(index[1])]) else None
    order = (
        r"\+1 const int64_t item = e / \(rows \* cols\), (r = «e» / cols % rows, .*|r = .*, c = «e» % cols;)"
        r"|\+1 const int64_t r = \(t - first\) / n_tiles \* max_rows, c = \(«t» - first\) % n_tiles \* max_cols;"
        r"|\+1 const int64_t r = within / across, begin = «within» % across \* TILE, .*"
    )
    if re.fullmatch(order, marked):  # columns of a row, rows of a column, or tiles of a row, each the next one's place
        return OTHER_ORDER
    if re.fullmatch(r"\+1 each\(chunk, min\(cols, «chunk» \+ 64\), .*", marked):
        return None if any(o.inplace for o in graph.outputs) else "a column is computed twice, to the same bits"
    if re.fullmatch(r"(-1 if \(«c» < end|\+1 if \(c < «end»)\) at\(c, Part\{end - c\}\);", marked):
        return "one part more is empty"
    if (why := next((why for why, p in MARKED.items() if re.fullmatch(p, marked)), None)) is not None:
        return why
    one_item = (
        r"-1 const int64_t item = «e» / \(rows \* cols\), .*"
        r"|\+1 const int64_t item = e / \((«rows» \* cols|rows \* «cols»)\), .*"
        r"|[+-]1 (const )?\w+\* const \w+ = all_\w+ \+ item \* «\w+_batch»;"
    )
    if "e < 1 * rows * cols" in source and re.fullmatch(one_item, marked):
        return ONE_ITEM
    if marked.startswith("+1 const int64_t ") and " = memory.take(" in marked and _all_fit(source, marked, graph):
        return BESIDE
    of_output = r"-1 each_query_sum<\d>\(.*, mine \+ «output», .*"
    if re.fullmatch(of_output, marked) and re.search(r"int64_t tile = .*\n *const int64_t output = ", source):
        return BEFORE_OUTPUT
    if operator.contract.batched or graph.ragged or "all_in_" not in source:
        return None
    tensor = r"[+-]1 (const )?\w+\* const \w+ = all_\w+ \+ («item» \* \w+_batch|(unit\.)?item \* «\w+_batch»);"
    buffers = r"-1 const Buffers buffers\(\d+, rows, cols, k_size, «batch», .*"
    if "each_product(" in source and re.fullmatch(buffers, marked):
        return ONE_PRODUCT
    again = r"\+1 each_product\(«batch», .*"
    if re.fullmatch(again, marked) and not any(o.inplace for o in graph.outputs):
        return ONE_PRODUCT
    item = (
        r"[+-]1 const int64_t item = «e» / \(rows .*"
        r"|\+1 const int64_t item = e / (\((«rows» \* cols|rows \* «cols»)\), .*|.*, r = e / cols % «rows», .*)"
    )
    return ONE_PRODUCT if re.fullmatch(tensor, marked) or re.fullmatch(item, marked) else None


def why_equivalent(
    device: str, mutant: Mutant, source: str, operator: Operator, graph: Graph, all_cases: bool = False
) -> str | None:  # fmt: skip
    """The reason for which no case over hashes refutes a mutant; None where it is a wrong program, or not known to be
    none. Some reasons need that no case of a verification refutes it."""
    why = why_surely(mutant, source, operator, graph)
    if why is not None:
        return why
    marked = _marked(mutant, source)
    if re.fullmatch(r"count \+ 1: if \(count == 0\) return S\{\};", str(mutant)):
        return NO_COLUMNS if all(o.space in ("rc", "c") for o in graph.outputs) else None
    rules = ((why, p) for why, some in REASONS.items() for p in some)
    why = next((why for why, p in rules if re.fullmatch(p, str(mutant))), None)
    if why is None and device == "sim":
        why = _on_gpu(marked, mutant, source, operator, graph, all_cases)
    return why


def _marked(mutant: Mutant, source: str) -> str:
    """The line with the changed number in angle quotes, and how it is changed before it."""
    begin, (name, *change) = source.rfind("\n", 0, mutant.at) + 1, mutant.what.split()
    line = source[begin : source.find("\n", mutant.at)]
    if mutant.what == "left out":
        return f"left out: {line.strip()}"
    at = mutant.at - begin
    return f"{''.join(change)} {line[:at].lstrip()}«{name}»{line[at + len(name) :]}"


def _on_gpu(marked: str, mutant: Mutant, source: str, operator: Operator, graph: Graph, all_cases: bool) -> str | None:
    """Reasons that hold where a program is as the emitters for GPUs print it."""
    block = source[source.find("\n", mutant.at) : _end_of_block(source, mutant.at)]
    fetched = re.fullmatch(rf"(\+1 .*{LOAD}.*, «(cols|size)» - c0\);|-1 .*{LOAD}.*, (cols|size) - «c0»\);)", marked)
    guard = re.fullmatch(r"-1 const int c0 = («first» \+ v|first \+ «v») \* STEP;", marked)
    if fetched or (guard and not re.search(r"\bc0\b", re.sub(rf"{LOAD}.*, cols - c0\);", "", block))):
        return BEHIND
    if re.fullmatch(r"\+1 const int64_t r = min\(row0 \+ thread_index\(\) / THREADS, «rows» - 1\);", marked):
        return NOT_LIVE if _stores_of_live(block) else None
    if re.fullmatch(r"(-1 const bool live = «row0» .*|\+1 const bool live = .* < «rows»;)", marked):
        stored = all(
            "store" in line or re.search(r"if \((t == 0|holds && within) && live\) \{", line)
            for line in block.splitlines()
            if "live" in line
        )
        return TWICE if stored and not any(o.inplace for o in graph.outputs) else None
    if re.fullmatch(r"\+1 const S v\d+ = «cols» \? \w+\[\d\] : S\{\};", marked):
        if operator.contract.min_cols or all(o.space in ("rc", "c") for o in graph.outputs):
            return NO_COLUMNS
        if _is_added(graph, graph.nodes[int(re.search(r" v(\d+) = ", marked)[1])]):  # type: ignore[index]
            return ADDED
        return SHOWN if all_cases and all(t.space in ("rc", "c") for t in graph.inputs) else None
    row = r"block0 \* BLOCK \+ i( \+ d)?"
    past_rows = rf"(-1 if \(block0 \* BLOCK \+ («i»( \+ d)?|i \+ «d») >= rows|\+1 if \({row} >= «rows»)\) break;.*"
    if re.fullmatch(past_rows, marked):
        added = [line for line in block.splitlines() if re.search(r"\bacc_\w+\[.*\] = ", line)]
        return NOT_ADDED if added and all("if (live" in line for line in added) else None
    behind = (
        r"(-1 const \w+ \w+ = («k» < end - i|k < end - «i»)|\+1 const \w+ \w+ = k < «end» - i) \? i \+ k : end - 1;"
    )
    if re.fullmatch(behind, marked) and "if (k >= end - i) continue;" in source[mutant.at :]:
        return NOT_USED
    if re.fullmatch(r"\+1 .*weigh<\w+>\(\w+\[p\], .*, d0 \+ p \* COLS, «k_size», .*", marked):
        return BEHIND if "d >= k_size) continue;" in source else None
    if marked == "-1 UNROLL for (int p = 0; «p» < PIECES; ++p) {" and re.match(r"\s*store_tile\(", block):
        return NEXT_PIECE
    if re.fullmatch(r"\+1 const int c = min\(column, «cols» - 1\);", marked):
        return NO_COLUMN if "column < cols) {" in block and block.count("store") == 1 else None
    if re.fullmatch(r"-1 if \(«turn» < ends\[2\]\) \{", marked):
        past = source[_end_of_block(source, source.find("\n", mutant.at)) + 1 :]
        return NO_TURN if re.match(r"\s*\}", past) else None
    if (at := re.fullmatch(FOLDED, marked)) is not None:
        return NEUTRAL if re.search(rf"\b{at[3]}\[e\] = c < cols \? .* : NEUTRAL_\w+;", source) else None
    if re.fullmatch(r"\+1 next_\w+ = in_\w+\[min\(.*, «rows» - 1\)\];", marked):
        return "what is read ahead behind the last row is not used"
    units = (
        r".1 const int64_t (r = entry\[0\] == 1 \? 0 : .*«.*|units_across = \(«\w+».*|from = .* «units_across»\) .*)"
    )
    if operator.contract.max_rows == 1 and re.fullmatch(units, marked):
        return ONE_ROW
    turn = r"for \(int64_t row0 = block_index\(\) \* ROWS; "
    if re.fullmatch(rf"(-1 {turn}«row0» < rows;|\+1 {turn}row0 < «rows»;) row0 \+= .*", marked):
        return "the threads of a turn more have no rows, and store nothing" if _stores_of_live(block) else None
    if re.fullmatch(
        r"(-1 for \(int64_t block0 = block_index\(\) \* ROWS; «block0» < blocks;"
        r"|\+1 for \(int64_t block0 = block_index\(\) \* ROWS; block0 < «blocks»;) block0 .*",
        marked,
    ):
        return "the threads of a turn more have no block of rows, and store nothing"
    if re.fullmatch(r"\+1 const bool mine = .* < «blocks»;|-1 const bool mine = «block0» \+ .*", marked):
        return None if any(o.inplace for o in graph.outputs) else TWICE_A_BLOCK
    if re.fullmatch(r"(-1 .* && «v\d+» < cols|\+1 .* && v\d+ < «cols»);", marked) and "const bool within = " in marked:
        return None if any(i.upto for i in operator.contract.indices.values()) else "indices are below what they count"
    of_slice = r"for \(int64_t row0 = \(block_index\(\) - slice \* units\) \* ROWS; "
    if re.fullmatch(
        rf"(-1 {of_slice}«row0» < rows;|\+1 {of_slice}row0 < «rows»;) row0 \+= grid_size\(\) \* ROWS\) {{", marked
    ):
        return "each block takes one unit of a slice, and the next one would begin behind all rows"
    if re.fullmatch(r"\+1 const int t = .* \+ «t» % GROUP\) \* CHUNK;", marked) and "along_row" not in source:
        return "each chunk is taken by another thread of a group, and no thread needs another one's"
    missed = "elements that were not missed are passed by in the loop over those that were"
    if re.fullmatch(r"\+1 if \(«missed»\) .*|-1 if \(missed\) ROLLED for \(int i = 0; «i» < .*", marked):
        return missed
    if re.fullmatch(r"\+1 const int v = i / CHUNK, e = «i» % CHUNK, c0 = .*", marked):
        return "the elements of a chunk that were missed are computed in another order"
    return None


def _is_chosen_in_vain(graph: Graph, index: Node) -> bool:
    """Whether a choice between two indices has no result where the second is chosen: all that is made of what is read
    there is left aside by a choice on the same condition."""
    if index.op != "where":
        return False
    made, results = {index}, {o.node for o in graph.outputs}
    for n in graph.nodes:  # operands first
        if n.op == "where" and n.args[0] is index.args[0] and n.args[2] not in made:
            continue
        if made & set(n.args):
            made.add(n)
    return not made & results and not any(n.op in ("scatter_sum", "col_sum", "total_sum") for n in made)


def _stores_of_live(block: str) -> bool:
    """Whether all that a block stores is stored by threads that have a row."""
    lines = [line for line in block.splitlines() if re.search(r"\bstore(1|_chunk)\b|\bout_\w+\[", line)]
    within = re.findall(r"if \(t == 0 && live\) \{(.*?)\n    \}", block, re.S)
    return bool(lines) and all("if (live)" in x or any(x in some for some in within) for x in lines)


DECLARATION = r"\s*const \w+\*?(?: const)? \w+ = [^{}\[]*;(?:  //.*)?"


def _is_unused(mutant: Mutant, source: str) -> bool:
    """Whether a number decides only the value of a variable that nothing reads, or of an array that is loaded, in the
    block that declares it."""
    begin = source.rfind("\n", 0, mutant.at) + 1
    end = source.find("\n", mutant.at)
    head, line = source[begin : mutant.at], source[begin:end]
    loaded = re.match(r"\s*load_chunk<WIDTH, \w+>\((\w+), in_\w+ \+ ", line)
    if mutant.what == "left out" or not (loaded or re.fullmatch(DECLARATION, line)):
        return False
    declared = loaded[1] if loaded else re.findall(r"(\w+) = ", head)[-1]
    return _is_read_nowhere(declared, source, mutant.at, end)


def _is_read_nowhere(declared: str, source: str, at: int, end: int) -> bool:
    """Whether nothing from a place on reads a variable, whose line ends there, but variables that nothing reads."""
    if re.search(rf"\b{declared}\b", source[at:end]):
        return False
    past = _end_of_block(source, end)
    for found in re.finditer(rf"(?<!\(void\))\b{declared}\b", source[end:past]):
        begin = source.rfind("\n", 0, end + found.start()) + 1
        line_end = source.find("\n", begin)
        made = re.findall(r"(\w+) = ", source[begin : end + found.start()])[-1:]
        if not re.fullmatch(DECLARATION, source[begin:line_end]) or not made or made[0] == declared:
            return False
        if not _is_read_nowhere(made[0], source, line_end, line_end):
            return False
    return True


# ------------------------------------------------------------------ the memory of attention's threads
TILES = ((12, 32), (6, 16), (8, 8), (4, 2))  # MR and NR of accumulators.h
SIZES = tuple(
    Sizes(r, c, k) for r in (1, 31, 4097, 8193) for c in (1, 12, 33, 4096, 4098) for k in (1, 11, 12, 64, 4096)
)


def _all_fit(source: str, marked: str, graph: Graph) -> bool:
    """Whether the pieces of a thread's memory fit into what a launch lends, with each tile and at many sizes, where one
    of them is larger."""
    larger = re.sub(r"«(\w+)»", r"(\1 + 1)", marked.partition(" ")[2])
    line = re.sub(r"[«»]", "", marked.partition(" ")[2])
    pieces = re.findall(r"= memory\.take\((.*)\);", source.replace(line, larger))
    plan = make_plan(graph)
    over = lambda n, of: -(-n // of)  # noqa: E731
    for (mr, nr), s in product(TILES, SIZES):
        names = dict(
            rows=s[0], cols=s[1], k_size=s.inner, MR=mr, NR=nr, TILE_SIZE=mr * nr, WIDTH=2 * nr,
            round_up=lambda n, of: over(n, of) * of,
            levels_of=lambda n: over(n, 4096).bit_length() if over(n, 4096) > 1 else 0,
        )  # fmt: skip
        taken = sum(over(eval(p, {}, names), 16) * 16 for p in pieces)
        if taken > plan.workspace_bytes([s], 1):
            return False
    return bool(pieces)


def _end_of_block(source: str, at: int) -> int:
    """Where the block ends in which a place is."""
    depth = 0
    for i in range(at, len(source)):
        depth += (source[i] == "{") - (source[i] == "}")
        if depth < 0:
            return i
    return len(source)
