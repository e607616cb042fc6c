"""A workload of small and middle-sized objects: records, text, sorting, graphs, JSON. Prints one checksum."""

import json
import re
import zlib
from collections import defaultdict, deque


class Account:
    def __init__(self, number, owner, balance):
        self.number = number
        self.owner = owner
        self.balance = balance
        self.history = []

    def move(self, other, amount):
        self.balance -= amount
        other.balance += amount
        self.history.append((other.number, -amount))
        other.history.append((self.number, amount))


def dice(seed):
    while True:
        seed = (seed * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        yield seed >> 33


def accounts(roll):
    all_accounts = [Account(n, "owner %d" % (n % 977), 1000) for n in range(20000)]
    for _ in range(150000):
        a = all_accounts[next(roll) % len(all_accounts)]
        b = all_accounts[next(roll) % len(all_accounts)]
        a.move(b, next(roll) % 100)
    by_owner = defaultdict(int)
    for account in all_accounts:
        by_owner[account.owner] += account.balance
    return sorted(by_owner.items(), key=lambda item: (item[1], item[0]))


def words(roll):
    text = " ".join("w%x" % (next(roll) % 5000) for _ in range(200000))
    counts = {}
    for word in re.findall(r"\w+", text):
        counts[word] = counts.get(word, 0) + 1
    return sorted(counts, key=lambda word: (-counts[word], word))[:500]


def graph(roll):
    edges = defaultdict(list)
    for _ in range(120000):
        edges[next(roll) % 30000].append(next(roll) % 30000)
    distance = {0: 0}
    queue = deque([0])
    while queue:
        node = queue.popleft()
        for other in edges[node]:
            if other not in distance:
                distance[other] = distance[node] + 1
                queue.append(other)
    return sum(distance.values()), len(distance)


def documents(roll):
    total = 0
    for number in range(40):
        document = {
            "id": number,
            "rows": [{"key": "k%d" % (next(roll) % 1000), "values": [next(roll) % 7 for _ in range(8)]} for _ in range(400)],
        }
        again = json.loads(json.dumps(document))
        total += sum(sum(row["values"]) for row in again["rows"])
    return total


def main():
    roll = dice(7)
    result = [accounts(roll), words(roll), graph(roll), documents(roll)]
    print(zlib.crc32(repr(result).encode()))


main()
