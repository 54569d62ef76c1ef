"""The numbers that tests/gradients/windows.rs and recurrent.rs expect, from PyTorch: `python3 torch_layers.py` prints them."""

import torch
import torch.nn.functional as F


def planes(rows):
    return torch.tensor([((i * 7) % 13) / 4.0 - 1.5 for i in range(rows * 24)]).reshape(rows, 2, 3, 4)


def numbers(count, factor):
    return torch.tensor([((i * factor) % 13) / 8.0 - 0.75 for i in range(count)])


def show(name, values):
    values = values.detach().reshape(-1).tolist()
    text = f"const {name}: [f32; {len(values)}] = [" + ", ".join(f"{v:.6}" if "." in f"{v:.6}" else f"{v:.6}.0" for v in values)
    print(text.replace("e-", "e-") + "];")


filters = torch.tensor([((i * 5) % 11) / 8.0 - 0.5 for i in range(36)])
print("// windows.rs")
show("PLAIN", F.conv2d(planes(2), filters.reshape(3, 2, 2, 3)))
show("PADDED", F.conv2d(planes(2), filters.reshape(3, 2, 2, 3), stride=(2, 1), padding=(1, 2), dilation=(1, 2)))
show("GROUPS", F.conv2d(planes(2), filters[:24].reshape(4, 1, 2, 3), stride=(1, 2), padding=(0, 1), groups=2))
x = planes(1)
show("MAX_PADDED", F.max_pool2d(x, (2, 3), 2, padding=(1, 1)))
show("MAX_CEIL", F.max_pool2d(x, (2, 3), 2, ceil_mode=True))
show("MEAN_PADDED", F.avg_pool2d(x, (2, 3), 2, padding=(1, 1), count_include_pad=False))
show("MEAN_COUNTED", F.avg_pool2d(x, (2, 3), 2, padding=(1, 1)))
show("MAX_ADAPTIVE", F.adaptive_max_pool2d(x, (2, 3)))
show("MEAN_ADAPTIVE", F.adaptive_avg_pool2d(x, (2, 3)))

print("// recurrent.rs")
STEPS, ROWS, STATE = 3, 2, 2
LENGTHS = [1, 3]


def cell(kind, gates):
    """A cell whose inputs are the gates themselves: its weights for the inputs are the identity."""
    made = kind(gates * STATE, STATE)
    with torch.no_grad():
        made.weight_ih.copy_(torch.eye(gates * STATE))
        made.bias_ih.zero_()
        made.weight_hh.copy_(numbers(gates * STATE * STATE, 7).reshape(gates * STATE, STATE))
        made.bias_hh.copy_(numbers(gates * STATE, 3))
    return made


def states(kind, gates, reverse, lengths):
    made = cell(kind, gates)
    x = numbers(STEPS * ROWS * gates * STATE, 5).reshape(STEPS, ROWS, gates * STATE)
    first = [numbers(ROWS * STATE, 4 + i).reshape(ROWS, STATE) for i in range(2 if gates == 4 else 1)]
    found = [None] * STEPS
    state = first
    for step in reversed(range(STEPS)) if reverse else range(STEPS):
        after = made(x[step], tuple(state) if gates == 4 else state[0])
        after = list(after) if gates == 4 else [after]
        if lengths:
            has = torch.tensor([[float(step < length)] for length in LENGTHS])
            after = [has * new + (1 - has) * old for new, old in zip(after, state)]
        state = after
        found[step] = torch.cat(state, 1)
    return torch.stack(found)


for name, kind, gates in [("GRU", torch.nn.GRUCell, 3), ("LSTM", torch.nn.LSTMCell, 4)]:
    show(name, states(kind, gates, False, False))
    show(f"{name}_REVERSE", states(kind, gates, True, False))
    show(f"{name}_LENGTHS", states(kind, gates, False, True))
