#!/usr/bin/env python3
"""Writes schedules.json: every schedule at several steps, from the formulas as fluid documents them.

    python3 schedules.py > schedules.json
"""
import json
import math

STEPS = [0, 1, 5, 9, 10, 11, 20, 25, 100, 1000]


def units(step, decay_steps, staircase):
    return math.floor(step / decay_steps) if staircase else step / decay_steps


def polynomial(base, decay_steps, end, power, cycle):
    def rate(step):
        period = decay_steps
        if cycle:
            period *= max(1, math.ceil(step / decay_steps))
        else:
            step = min(step, decay_steps)
        return (base - end) * (1 - step / period) ** power + end
    return rate


def piecewise(boundaries, values):
    def rate(step):
        for boundary, value in zip(boundaries, values):
            if step < boundary:
                return value
        return values[-1]
    return rate


def noam(base, d_model, warmup):
    return lambda step: base * d_model ** -0.5 * min((step + 1) ** -0.5, (step + 1) * warmup ** -1.5)


CASES = [({"constant": 0.3}, lambda step: 0.3)]
for stairs in (False, True):
    knobs = {"base": 0.1, "decay_steps": 10, "decay_rate": 0.5, "staircase": stairs}
    CASES += [
        ({"exponential": knobs}, lambda step, stairs=stairs: 0.1 * 0.5 ** units(step, 10, stairs)),
        ({"natural_exp": knobs}, lambda step, stairs=stairs: 0.1 * math.exp(-0.5 * units(step, 10, stairs))),
        ({"inverse_time": knobs}, lambda step, stairs=stairs: 0.1 / (1 + 0.5 * units(step, 10, stairs))),
    ]
for cycle in (False, True):
    knobs = {"base": 0.1, "decay_steps": 10, "end": 0.01, "power": 2.0, "cycle": cycle}
    CASES.append(({"polynomial": knobs}, polynomial(0.1, 10, 0.01, 2.0, cycle)))
knobs = {"boundaries": [10, 20], "values": [1.0, 0.5, 0.1]}
CASES.append(({"piecewise": knobs}, piecewise(**knobs)))
CASES.append((
    {"cosine": {"base": 0.1, "step_each_epoch": 5, "epochs": 8}},
    lambda step: 0.1 * 0.5 * (math.cos(step // 5 * math.pi / 8) + 1),
))
CASES.append(({"noam": {"base": 1.0, "d_model": 512.0, "warmup_steps": 10}}, noam(1.0, 512.0, 10)))
from_zero = {"base": 0.5, "d_model": 512.0, "warmup_steps": 10, "first": 0}
CASES.append(({"noam": from_zero}, lambda step: noam(0.5, 512.0, 10)(step - 1) if step else 0.0))
CASES.append((
    {"warmup": {"warmup_steps": 10, "start": 0.01, "end": 0.2,
                "after": {"piecewise": {"boundaries": [10, 20], "values": [1.0, 0.5, 0.1]}}}},
    lambda step: 0.01 + 0.19 * step / 10 if step < 10 else piecewise([10, 20], [1.0, 0.5, 0.1])(step),
))

out = [{"schedule": name, "points": [[step, rate(step)] for step in STEPS]} for name, rate in CASES]
print("[\n" + ",\n".join(json.dumps(case) for case in out) + "\n]")
