"""The `pipe_command` of script 003: it imports paddle too, and writes the lines that a dataset reads."""

import paddle.distributed.fleet as fleet


class Reader(fleet.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def samples():
            label, user, item, age = line.split()
            yield [("label", [int(label)]), ("age", [float(age)]), ("user", [int(user)]), ("item", [int(item)])]

        return samples


Reader().run_from_stdin()
