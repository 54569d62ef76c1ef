#!/usr/bin/env python3
"""Writes optimizers.json: every rule over several steps, in double precision, from the formulas as fluid documents them.

    python3 optimizers.py > optimizers.json

Written from the formulas and not from the Rust, one scalar at a time, with nothing but the standard library.
"""
import json
import math

WEIGHTS = [0.5, -0.25, 0.0, 2.0]
GRADIENTS = [
    [0.1, -0.2, 0.0, 1.0],
    [0.3, 0.2, 0.05, -1.0],
    [-0.1, 0.4, -0.5, 0.5],
    [0.0, 0.0, 0.7, 3.0],
    [0.2, -0.6, 0.01, -0.25],
]


def sign(x):
    return (x > 0) - (x < 0)


def sgd(rate, t, w, s, g):
    return w - rate * g, []


def momentum(mu, nesterov):
    def rule(rate, t, w, s, g):
        v = mu * s[0] + g
        return w - rate * (g + mu * v if nesterov else v), [v]
    return rule


def adagrad(epsilon):
    def rule(rate, t, w, s, g):
        total = s[0] + g * g
        return w - rate * g / (math.sqrt(total) + epsilon), [total]
    return rule


def adam(beta1, beta2, epsilon):
    def rule(rate, t, w, s, g):
        m = beta1 * s[0] + (1 - beta1) * g
        v = beta2 * s[1] + (1 - beta2) * g * g
        root = math.sqrt(1 - beta2 ** t)
        return w - rate * root / (1 - beta1 ** t) * m / (math.sqrt(v) + epsilon * root), [m, v]
    return rule


def adamw(beta1, beta2, epsilon, decay):
    def rule(rate, t, w, s, g):
        return adam(beta1, beta2, epsilon)(rate, t, w - rate * decay * w, s, g)
    return rule


def adamax(beta1, beta2, epsilon):
    def rule(rate, t, w, s, g):
        m = beta1 * s[0] + (1 - beta1) * g
        norm = max(abs(g), beta2 * s[1] + epsilon)
        return w - rate / (1 - beta1 ** t) * m / norm, [m, norm]
    return rule


def adadelta(rho, epsilon):
    def rule(rate, t, w, s, g):
        square = rho * s[0] + (1 - rho) * g * g
        update = math.sqrt(s[1] + epsilon) / math.sqrt(square + epsilon) * g
        return w - rate * update, [square, rho * s[1] + (1 - rho) * update * update]
    return rule


def decayed_adagrad(decay, epsilon):
    def rule(rate, t, w, s, g):
        square = decay * s[0] + (1 - decay) * g * g
        return w - rate * g / (math.sqrt(square) + epsilon), [square]
    return rule


def rms_prop(rho, epsilon, mu, centered):
    def rule(rate, t, w, s, g):
        square = rho * s[0] + (1 - rho) * g * g
        mean = rho * s[2] + (1 - rho) * g if centered else 0.0
        update = mu * s[1] + rate * g / math.sqrt(square - mean * mean + epsilon)
        return w - update, [square, update] + ([mean] if centered else [])
    return rule


def ftrl(l1, l2, power):
    l1, l2 = l1 + 1e-10, l2 + 1e-10

    def rule(rate, t, w, s, g):
        n, z = s
        after = n + g * g
        z += g - (after ** -power - n ** -power) / rate * w
        leader = (l1 * sign(z) - z) / (after ** -power / rate + 2 * l2)
        return (leader if abs(z) > l1 else 0.0), [after, z]
    return rule


def rowwise_adagrad(rate, epsilon, start):
    """Steps of a whole row, which shares one accumulator (FBGEMM's `EXACT_ROWWISE_ADAGRAD`)."""
    weights, total = list(WEIGHTS), start
    for gradient in GRADIENTS:
        total += sum(g * g for g in gradient) / len(gradient)
        factor = rate / (math.sqrt(total) + epsilon)
        weights = [w - factor * g for w, g in zip(weights, gradient)]
        yield {"gradient": gradient, "weights": weights, "state": [total]}


def lamb(rate, beta1, beta2, epsilon, decay, adapts):
    """Steps of a whole parameter, whose norm decides how far it moves (You et al. 2020)."""
    weights, m, v = list(WEIGHTS), [0.0] * len(WEIGHTS), [0.0] * len(WEIGHTS)
    norm = lambda values: math.sqrt(sum(x * x for x in values))
    for t, gradient in enumerate(GRADIENTS, 1):
        m = [beta1 * a + (1 - beta1) * g for a, g in zip(m, gradient)]
        v = [beta2 * a + (1 - beta2) * g * g for a, g in zip(v, gradient)]
        r = [a / (1 - beta1 ** t) / (math.sqrt(b / (1 - beta2 ** t)) + epsilon) + decay * w
             for a, b, w in zip(m, v, weights)]
        ratio = norm(weights) / norm(r) if adapts and norm(weights) > 0 and norm(r) > 0 else 1.0
        weights = [w - rate * ratio * a for w, a in zip(weights, r)]
        yield {"gradient": gradient, "weights": weights, "state": m + v}


LAMB_CASES = [
    ({"lamb": {}}, 0.01, 0.9, 0.999, 1e-6, 0.01, True),
    ({"lamb": {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.01, "weight_decay": 0.3}}, 0.1, 0.5, 0.9, 0.01, 0.3, True),
    ({"lamb": {"weight_decay": 0.0}}, 0.1, 0.9, 0.999, 1e-6, 0.0, False),
    ({"lamb": {"weight_decay": 0.0, "always_adapt": True}}, 0.1, 0.9, 0.999, 1e-6, 0.0, True),
]

ROW_CASES = [
    ({"rowwise_adagrad": {}}, 0.1, 1e-8, 0.0),
    ({"rowwise_adagrad": {"epsilon": 0.01, "initial_accumulator": 0.1}}, 0.05, 0.01, 0.1),
]

CASES = [
    ({"sgd": {}}, 0.1, sgd, 0, 0.0),
    ({"momentum": {"momentum": 0.9, "nesterov": False}}, 0.1, momentum(0.9, False), 1, 0.0),
    ({"momentum": {"momentum": 0.9, "nesterov": True}}, 0.1, momentum(0.9, True), 1, 0.0),
    ({"adagrad": {}}, 0.1, adagrad(1e-6), 1, 0.0),
    ({"adagrad": {"initial_accumulator": 0.1}}, 0.05, adagrad(1e-6), 1, 0.1),
    ({"adam": {}}, 0.001, adam(0.9, 0.999, 1e-8), 2, 0.0),
    ({"adam": {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.01}}, 0.1, adam(0.5, 0.9, 0.01), 2, 0.0),
    ({"adamw": {}}, 0.001, adamw(0.9, 0.999, 1e-8, 0.01), 2, 0.0),
    ({"adamw": {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.01, "weight_decay": 0.3}}, 0.1, adamw(0.5, 0.9, 0.01, 0.3), 2, 0.0),
    ({"adamax": {}}, 0.01, adamax(0.9, 0.999, 1e-8), 2, 0.0),
    ({"adamax": {"beta1": 0.5, "beta2": 0.6, "epsilon": 0.01}}, 0.1, adamax(0.5, 0.6, 0.01), 2, 0.0),
    ({"adadelta": {}}, 1.0, adadelta(0.95, 1e-6), 2, 0.0),
    ({"adadelta": {"rho": 0.8, "epsilon": 0.01}}, 0.1, adadelta(0.8, 0.01), 2, 0.0),
    ({"decayed_adagrad": {}}, 0.01, decayed_adagrad(0.95, 1e-6), 1, 0.0),
    ({"decayed_adagrad": {"decay": 0.5, "epsilon": 0.01}}, 0.1, decayed_adagrad(0.5, 0.01), 1, 0.0),
    ({"rms_prop": {}}, 0.01, rms_prop(0.95, 1e-6, 0.0, False), 2, 0.0),
    ({"rms_prop": {"rho": 0.9, "momentum": 0.9}}, 0.01, rms_prop(0.9, 1e-6, 0.9, False), 2, 0.0),
    ({"rms_prop": {"rho": 0.9, "epsilon": 0.01, "centered": True}}, 0.01, rms_prop(0.9, 0.01, 0.0, True), 3, 0.0),
    ({"ftrl": {}}, 0.1, ftrl(0.0, 0.0, -0.5), 2, 0.0),
    ({"ftrl": {"l1": 0.3, "l2": 0.1}}, 0.1, ftrl(0.3, 0.1, -0.5), 2, 0.0),
    ({"ftrl": {"l1": 0.1, "l2": 0.1, "lr_power": -0.75}}, 0.1, ftrl(0.1, 0.1, -0.75), 2, 0.0),
]

out = []
for optimizer, rate, rule, slots, start in CASES:
    weights = list(WEIGHTS)
    state = [[start] * slots for _ in weights]
    steps = []
    for t, gradient in enumerate(GRADIENTS, 1):
        for i, g in enumerate(gradient):
            weights[i], state[i] = rule(rate, t, weights[i], state[i], g)
        # Slot-major, as a table lays it out.
        flat = [state[i][slot] for slot in range(slots) for i in range(len(weights))]
        steps.append({"gradient": gradient, "weights": list(weights), "state": flat})
    out.append({"optimizer": optimizer, "rate": rate, "weights": WEIGHTS, "steps": steps})
for optimizer, rate, epsilon, start in ROW_CASES:
    steps = list(rowwise_adagrad(rate, epsilon, start))
    out.append({"optimizer": optimizer, "rate": rate, "weights": WEIGHTS, "steps": steps})
for optimizer, rate, *settings in LAMB_CASES:
    steps = list(lamb(rate, *settings))
    out.append({"optimizer": optimizer, "rate": rate, "weights": WEIGHTS, "steps": steps})
print("[\n" + ",\n".join(json.dumps(case) for case in out) + "\n]")
