"""Takes locks with a Python client for tests/interop/main.rs: redlock-py or pottery.

usage: client.py redlock-py|pottery URL...        (PYTHONPATH says where the packages are)

Says "ready", then answers each line on stdin with one line on stdout, and ends when stdin does:

  acquire NAME TTL_MS    one attempt: "held" or "refused"
  release                of what was acquired last: "released", or "failed REASON"
"""

import sys
import types


def redlock_py(urls):
    import redlock

    class Client:
        """retry_count counts attempts; 0 would mean the default."""

        locks = redlock.Redlock(urls, retry_count=1, retry_delay=0.001)

        def acquire(self, name, ttl_ms):
            self.lock = self.locks.lock(name, ttl_ms)
            return bool(self.lock)

        def release(self):
            self.locks.unlock(self.lock)

    return Client()


def pottery(urls):
    # For its Bloom filter, and compiled: the lock does without.
    sys.modules["mmh3"] = types.ModuleType("mmh3")
    from pottery import Redlock
    from redis import Redis

    class Client:
        masters = {Redis.from_url(url) for url in urls}

        def acquire(self, name, ttl_ms):
            """Its key is "redlock:" and the name."""
            self.lock = Redlock(key=name, masters=self.masters, auto_release_time=ttl_ms / 1000)
            return self.lock.acquire(blocking=False)

        def release(self):
            self.lock.release()

    return Client()


def main():
    package, *urls = sys.argv[1:]
    client = {"redlock-py": redlock_py, "pottery": pottery}[package](urls)
    print("ready", flush=True)

    for line in sys.stdin:
        match line.split():
            case ["acquire", name, ttl_ms]:
                print("held" if client.acquire(name, int(ttl_ms)) else "refused", flush=True)
            case ["release"]:
                try:
                    client.release()
                    print("released", flush=True)
                except Exception as err:  # a lock that is gone is an error for one and none for the other
                    print("failed", repr(err), flush=True)
            case _:
                sys.exit(f"client.py: not understood: {line!r}")


main()
