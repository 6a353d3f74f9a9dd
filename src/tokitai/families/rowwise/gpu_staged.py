"""Rows that come into shared memory while others are worked on: copies go on by themselves, past registers.

Every thread copies what it will read itself, so no barrier is needed.
"""

from __future__ import annotations

from ...emit.text import POINTER
from .gpu_columns import GpuColumnEmitter
from .schedule import stages


class GpuStagedEmitter(GpuColumnEmitter):
    """Prints the loops over rows that are staged."""

    def row(self) -> None:
        """All that is computed from one row on its own."""
        raise NotImplementedError

    def chunk_loop(self, body: object) -> None:
        """The chunks of a thread, with the first column of each."""
        self.open("UNROLL for (int v = 0; v < CHUNKS; ++v)")
        self.line("const int c0 = first + v * STEP;")
        assert callable(body)
        body()
        self.close()

    def staged_rows(self) -> None:
        """Rows one after another."""
        self.stages()
        self.stage("0", "block_index()", "rows")
        self.open("for (int64_t r = block_index(); r < rows; r += grid_size(), turn = after(turn))")
        self.line("constexpr bool live = true;")
        if self.held:
            self.line("wait_for_copies<0>();")
            for t in self.matrices:
                self.line(f"Chunk<{POINTER[str(t.format)]}> row_{t.name}[CHUNKS];")
                self.line(f"UNROLL for (int v = 0; v < CHUNKS; ++v) row_{t.name}[v] = stage_{t.name}.get(0, v);")
            self.stage("0", "r + grid_size()", "rows")
        else:
            self.wait_and_stage("r + grid_size()", "rows")
        self.row()
        self.close()

    def staged_blocks(self) -> None:
        """Rows one after another inside blocks: chains of column sums."""
        self.stages()
        self.open("for (int64_t block0 = block_index() * ROWS; block0 < blocks; block0 += grid_size() * ROWS)")
        self.line("const int64_t block = least(block0 + thread_index() / THREADS, blocks - 1);")
        self.line("const bool mine = block0 + thread_index() / THREADS < blocks;")
        self.line("const int64_t end = least(rows, (block + 1) * BLOCK);")
        self.declare_sums()
        self.line("wait_for_copies<0>();")
        self.line("turn = 0;")
        self.stage("0", "block * BLOCK", "end")
        for t in self.rows_fetched:
            self.line(f"{POINTER[str(t.format)]} next_{t.name} = in_{t.name}[block * BLOCK];")
        self.open("ROLLED for (int64_t i = 0; i < BLOCK; ++i, turn = after(turn))")
        self.line("if (block0 * BLOCK + i >= rows) break;  // the same in all threads")
        self.line("const int64_t row = block * BLOCK + i, r = least(row, rows - 1);")
        self.line("constexpr bool live = true;" if self.all_live else "const bool live = mine && row < rows;")
        for t in self.rows_fetched:
            self.line(f"const {POINTER[str(t.format)]} row_{t.name} = next_{t.name};")
            self.line(f"next_{t.name} = in_{t.name}[least(row + 1, rows - 1)];")
        self.wait_and_stage("row + 1", "end")
        self.row()
        self.close()
        self.store_sums()
        self.close()

    def stages(self) -> None:
        """Where rows are staged."""
        self.line("SHARED_AT_LAUNCH(room);")
        self.line(f"constexpr int STAGES = {stages(self.plan, self.schedule)};")
        taken = "room"
        for t in self.matrices:
            kind = f"Stage<{POINTER[str(t.format)]}, THREADS * ROWS, CHUNKS, STAGES>"
            self.line(f"{kind} stage_{t.name}({taken});")
            taken += f" + {kind}::BYTES"
        self.line("const auto after = [](int turn) { return STAGES - 1 - turn; };")
        self.line("int turn = 0;")

    def wait_and_stage(self, row: str, end: str) -> None:
        """The row of this turn has come; a later one is on its way to where the row before it lay."""
        self.line("wait_for_copies<0>();")
        self.stage("after(turn)", row, end)

    def stage(self, turn: str, row: str, end: str) -> None:
        """A row on its way, if there is one; copies are counted by rows in any case."""
        self.open("")
        self.line(f"const int64_t wanted = {row};")
        self.line(f"const int to = {turn};")
        self.open(f"if (wanted < {end})")
        for t in self.matrices:
            source = f"in_{t.name} + wanted * in_{t.name}_stride + first + v * STEP"
            self.chunk_loop(lambda t=t, source=source: self.line(
                f"stage_{t.name}.template fetch<WIDTH, FIT>(to, v, {source}, cols - c0);"
            ))  # fmt: skip
        self.close()
        self.line("close_copies();")
        self.close()

    def declare_sums(self) -> None:
        """A thread's parts of the column sums, in registers."""
        for n in self.sums:
            self.line(f"S acc_{self.name[n]}[CHUNKS * CHUNK];")
            self.line(f"UNROLL for (int i = 0; i < CHUNKS * CHUNK; ++i) acc_{self.name[n]}[i] = NEUTRAL_SUM;")

    def store_sums(self) -> None:
        """The sums of a block of rows."""
        self.open("if (mine)")
        for n in self.sums:
            self.chunk_loop(lambda n=n: self.line(
                f"store_partial(sum_{self.name[n]} + block * cols + first + v * STEP, "
                f"acc_{self.name[n]} + v * CHUNK, cols - c0);"
            ))  # fmt: skip
        self.close()
