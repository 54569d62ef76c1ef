"""The numbers that tests/gradients expects, from the formulas in plain double precision: `python3 ops.py` prints them.

Nothing but the standard library, so that anyone can run it.
"""

from math import exp, log, sqrt

X = [[0.5, -1.0, 2.0], [0.0, 3.0, -2.0]]
LABELS = [2, 0]
SOFT = [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]
P = [0.1, 0.5, 0.9, 0.75]
Z = [0.0, 1.0, 1.0, 0.25]


def show(name, *numbers):
    flat = [n for number in numbers for n in (number if isinstance(number, list) else [number])]
    print(f"{name}: " + ", ".join(f"{n:.7g}" for n in flat))


def softmax(row):
    exps = [exp(x) for x in row]
    return [e / sum(exps) for e in exps]


def moments(values):
    mean = sum(values) / len(values)
    return mean, sum((v - mean) ** 2 for v in values) / len(values)


show("softmax of rows", *[softmax(row) for row in X])
show("softmax of columns", *[[softmax(c)[i] for c in zip(*X)] for i in range(2)])
show("softmax_with_cross_entropy", *[-log(softmax(row)[z]) for row, z in zip(X, LABELS)])
show("with soft labels", *[-sum(z * log(p) for z, p in zip(zs, softmax(row))) for row, zs in zip(X, SOFT)])
show("log_loss", *[-z * log(p + 1e-4) - (1 - z) * log(1 - p + 1e-4) for p, z in zip(P, Z)])
show("binary_cross_entropy", *[-z * log(p) - (1 - z) * log(1 - p) for p, z in zip(P, Z)])

SCALE, SHIFT = [2.0, 0.5, -1.0], [0.1, 0.2, 0.3]
rows = []
for row in X:
    mean, variance = moments(row)
    rows.append([(x - mean) / sqrt(variance + 1e-5) * a + b for x, a, b in zip(row, SCALE, SHIFT)])
show("layer_norm", *rows)

BATCH = [[1.0, 10.0], [2.0, 30.0], [6.0, 20.0]]
stats = [moments(column) for column in zip(*BATCH)]
show("batch_norm", *[[(x - m) / sqrt(v + 1e-5) for x, (m, v) in zip(row, stats)] for row in BATCH])
running = [(0.1 * m, 0.9 + 0.1 * v) for m, v in stats]
show("running mean", *[m for m, _ in running])
show("running variance", *[v for _, v in running])
show("batch_norm in evaluation", *[(x - m) / sqrt(v + 1e-5) for x, (m, v) in zip([1.0, 10.0], running)])

show("l2_normalize", *[[x / sqrt(sum(v * v for v in row) + 1e-12) for x in row] for row in X])

FIELDS = [[1.0, 2.0], [-1.0, 0.5], [3.0, 4.0]]
pairs = [(i, j) for i in range(3) for j in range(i + 1, 3)]
show("fm, pair by pair", sum(a * b for i, j in pairs for a, b in zip(FIELDS[i], FIELDS[j])))

X0, XL, W, B = [1.0, 2.0, 3.0], [0.5, -1.0, 2.0], [0.1, 0.2, 0.3], [0.01, 0.02, 0.03]
inner = sum(x * w for x, w in zip(XL, W))
show("cross", [x0 * inner + b + x for x0, b, x in zip(X0, B, XL)])
