#!/usr/bin/env python3
"""Checks servers of OpenAI's API from outside, any engine's, and prints a table with a column each.

Usage: conformance.py [--api-key KEY] [--model ID] [--only NAME ...] [--json FILE] [NAME=]URL ...
Exit status: 0 if the first server fails nothing, 1 if it does, 2 for arguments that cannot be used or a server that does not answer."""

import argparse
import json
import sys

from checks import CHECKS
from engine import Engine, Unsupported

PASS, FAIL, SKIP = "pass", "fail", "not there"


def run(engine, checks):
    """By the name of the check: (outcome, reason)."""
    results = {}
    for function in checks:
        try:
            function(engine)
            results[function.__name__] = (PASS, "")
        except Unsupported as reason:
            results[function.__name__] = (SKIP, str(reason))
        except Exception as error:  # whatever a server sends, the next check still runs
            results[function.__name__] = (FAIL, f"{type(error).__name__}: {error}"[:600])
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="[NAME=]URL")
    parser.add_argument("--api-key")
    parser.add_argument("--model", help="of all servers; the first that each lists otherwise")
    parser.add_argument("--only", action="append", choices=[function.__name__ for function in CHECKS], help="may be given several times")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    checks = [function for function in CHECKS if not arguments.only or function.__name__ in arguments.only]
    table = {}
    for server in arguments.servers:
        name, _, url = server.rpartition("=")
        try:
            engine = Engine(url, arguments.model, arguments.api_key)
        except Exception as error:
            print(f"conformance: {url}: {error}", file=sys.stderr)
            return 2
        table[name or url] = run(engine, checks)
    width = max(len(function.__name__) for function in checks)
    print(" | ".join(["".ljust(width), *table]))
    for function in checks:
        print(" | ".join([function.__name__.ljust(width), *(table[name][function.__name__][0].ljust(len(name)) for name in table)]))
    for name, results in table.items():
        counts = [sum(outcome == kind for outcome, _ in results.values()) for kind in (PASS, FAIL, SKIP)]
        print(f"\n{name}: {counts[0]} pass, {counts[1]} fail, {counts[2]} not there")
        for check, (outcome, reason) in results.items():
            if outcome != PASS:
                print(f"  {outcome}: {check}: {reason}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({name: {check: {"outcome": outcome, "reason": reason} for check, (outcome, reason) in results.items()} for name, results in table.items()}, file, indent=1)
    return 1 if any(outcome == FAIL for outcome, _ in next(iter(table.values())).values()) else 0


if __name__ == "__main__":
    sys.exit(main())
