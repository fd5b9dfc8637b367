"""What the client scripts share: the server's address, and a list of checks that all run."""
import argparse
import asyncio
import inspect
import os
import traceback

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
           "required": ["city"]}


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://localhost:8000", help="of the server, without /v1")
    parser.add_argument("--key", default=os.environ.get("M3_API_KEY", "none"))
    parser.add_argument("--only", default="", help="checks whose name holds this")
    return parser.parse_args()


def run(checks, only=""):
    """Runs all, says of each whether it held, and ends with 1 if one did not."""
    failed = 0
    for check in checks:
        if only not in check.__name__:
            continue
        try:
            said = asyncio.run(check()) if inspect.iscoroutinefunction(check) else check()
            print(f"ok      {check.__name__}" + (f": {said}" if said else ""), flush=True)
        except Exception as problem:  # the others still run
            failed += 1
            frame = traceback.extract_tb(problem.__traceback__)[-1]
            place = next((f for f in reversed(traceback.extract_tb(problem.__traceback__)) if "_client" in f.filename), frame)
            print(f"FAILED  {check.__name__}, line {place.lineno}: {type(problem).__name__}: {str(problem)[:400]}", flush=True)
    raise SystemExit(1 if failed else 0)
