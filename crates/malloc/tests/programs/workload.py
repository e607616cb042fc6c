"""Objects, strings, threads, subprocesses and big numbers, with a digest of everything at the end."""
import concurrent.futures
import hashlib
import json
import multiprocessing
import random
import re
import sqlite3
import subprocess
import sys
import threading
import zlib


def table(seed):
    numbers = random.Random(seed)
    rows = [{"id": i, "name": f"row {numbers.randrange(10**6)}", "list": [numbers.random() for _ in range(20)]} for i in range(3000)]
    text = json.dumps(rows)
    packed = zlib.compress(text.encode())
    assert json.loads(zlib.decompress(packed)) == rows
    words = re.findall(r"row (\d+)", text)
    return hashlib.sha256(" ".join(sorted(words)).encode() + packed).hexdigest()


def database(seed):
    base = sqlite3.connect(":memory:")
    base.execute("create table t(a integer, b text)")
    base.executemany("insert into t values(?, ?)", ((i * seed % 997, "x" * (i % 300)) for i in range(20000)))
    return base.execute("select sum(a), sum(length(b)), count(distinct a) from t").fetchone()


def main():
    print([table(seed) for seed in range(4)])
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        print(list(threads.map(table, range(8))))
        print(list(threads.map(database, range(1, 5))))
    # Forked workers go on with the heap of a process that has had threads.
    with multiprocessing.get_context("fork").Pool(4) as pool:
        print(pool.map(table, range(8)))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(database, range(1, 3)))
    keep = threading.Event()
    idle = [threading.Thread(target=keep.wait) for _ in range(50)]
    for thread in idle:
        thread.start()
    for i in range(20):
        done = subprocess.run([sys.executable, "-c", f"print(sum(range({i}000)))"], capture_output=True, text=True, check=True)
        print(done.stdout.strip())
    keep.set()
    for thread in idle:
        thread.join()
    print(hashlib.sha256(hex(3**200000 // 7**50000).encode()).hexdigest())
    grown = bytearray()
    for i in range(200000):
        grown += i.to_bytes(4, "little")
    print(zlib.crc32(grown), len(grown))


if __name__ == "__main__":
    main()
