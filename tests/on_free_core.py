"""Runs a command on one core that no other such command has: on_free_core.py COMMAND ... Without one, on all.

For tests of the program side by side: it takes the cores that it may use, and its threads spin while they wait, so that two with two threads on two
cores starve each other. ctest's PROCESSOR_AFFINITY would do, but not every build of ctest has it.
"""

import fcntl
import os
import pathlib
import sys
import tempfile

for core in sorted(os.sched_getaffinity(0)):
    lock = None
    try:
        lock = os.open(pathlib.Path(tempfile.gettempdir()) / f"oscar_test_core_{core}_of_{os.getuid()}", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another test has it, or the file is not ours
        if lock is not None:
            os.close(lock)
        continue
    os.set_inheritable(lock, True)  # held until the command ends
    os.sched_setaffinity(0, {core})
    break
os.execvp(sys.argv[1], sys.argv[1:])
