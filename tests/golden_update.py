"""Write the golden files anew: `python -m tests.golden_update`. Read the difference before you keep it."""

from __future__ import annotations

from tests.golden_shapes import GOLDEN, SHAPES, golden_path, golden_text


def main() -> None:
    wanted = {golden_path(name) for name in SHAPES}
    for stale in set(GOLDEN.glob("*.txt")) - wanted:
        stale.unlink()
        print(f"removed {stale.name}")
    for name in SHAPES:
        path, text = golden_path(name), golden_text(name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
