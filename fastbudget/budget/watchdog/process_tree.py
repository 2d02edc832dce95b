"""Processes held by pidfd: a number that is used again for another process can't be hit."""

import contextlib
import os
import select
import signal

NAME = "fb-watchdog"


class Process:
    """A process held by its pidfd.

    Raises:
        ProcessLookupError: there is none of that number.
    """

    def __init__(self, pid: int, descriptor: int | None = None) -> None:
        self.pid = pid
        self.descriptor = os.pidfd_open(pid) if descriptor is None else descriptor

    def is_alive(self) -> bool:
        """Whether it runs or is stopped; a zombie is dead."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return not poll.poll(0)

    def send(self, number: int) -> None:
        """Send a signal; a process that is gone is left in peace."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self.descriptor, number)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.descriptor)


def _children(pid: int) -> list[int]:
    """Return the numbers of a process's children, of all its threads."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
        except FileNotFoundError:
            continue
        except OSError:
            continue
    return found


def _name_and_parent(pid: int) -> tuple[str, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    name, _, rest = text[text.index("(") + 1 :].rpartition(")")
    return name, int(rest.split()[1])


class ProcessTree:
    """Given processes and all their descendants seen so far, also those whose parents are dead by now."""

    def __init__(self, roots: list[Process]) -> None:
        self._roots = roots
        self._known = {root.pid: root for root in roots}

    def refresh(self) -> bool:
        """Look for descendants not known yet; returns whether there were any."""
        for pid, process in list(self._known.items()):
            if process not in self._roots and not process.is_alive():
                process.close()
                del self._known[pid]
        found = False
        unseen = list(self._known.values())
        while unseen:
            parent = unseen.pop()
            for pid in _children(parent.pid):
                if pid in self._known or pid == os.getpid():
                    continue
                child = self._verified(pid, parent)
                if child is not None:
                    self._known[pid] = child
                    unseen.append(child)
                    found = True
        return found

    def _verified(self, pid: int, parent: Process) -> Process | None:
        """Return the process, if it is this parent's child. Watchdogs are left alone: they bill and then end.

        The pidfd comes first: while what it holds is alive, the number can't have gone to another process, so what is
        read of the number meanwhile was said of the process held. The same goes for its parent.
        """
        try:
            child = Process(pid)
        except OSError:
            return None
        described = _name_and_parent(pid)
        if described is None or described[0] == NAME or described[1] != parent.pid:
            child.close()
            return None
        if not child.is_alive() or not parent.is_alive():
            child.close()
            return None
        return child

    def kill(self) -> None:
        """Stop all of them so that none can fork, then kill all."""
        for _ in range(20):
            for process in self._known.values():
                process.send(signal.SIGSTOP)
            if not self.refresh():
                break
        for process in self._known.values():
            process.send(signal.SIGKILL)
