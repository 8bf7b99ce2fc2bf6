"""The scripted engine, which first prints its arguments and its environment as careless programs do."""

import os
import sys
from pathlib import Path

print(f"non-default args: {sys.argv}", flush=True)
print(" ".join(sys.argv), flush=True)
for name, value in os.environ.items():
    print(f"{name}={value}", flush=True)
print(dict(os.environ), flush=True)
if os.environ.get("TALK_AND_FAIL"):
    sys.exit(3)
engine = Path(__file__).parent.parent / "scripted_engine.py"
os.execv(sys.executable, [sys.executable, str(engine), *sys.argv[1:]])
