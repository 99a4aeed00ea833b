"""A strict reader of metrics as text, OpenMetrics or the format of Prometheus before it: any line that
is not as these say is an AssertionError."""

import math
import re

NAME = r"[a-z_][a-z0-9_]*"
LABEL = rf'{NAME}="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
KINDS = {"counter": ("_total",), "gauge": ("",), "info": ("_info",),
         "histogram": ("_bucket", "_sum", "_count")}


class Metrics(dict):
    """Values by name and labels: m["nvllm_requests_total", 'outcome="stop"']; those without labels by
    name alone. types: of the families, by their names; m.families: likewise, the names of samples."""

    def __init__(self, text, openmetrics):
        super().__init__()
        self.types, self.helps = {}, {}
        lines = text.split("\n")
        assert lines[-2:] == ["# EOF", ""], lines[-3:]
        family = None
        for line in lines[:-2]:
            if line.startswith("#"):
                family = self.take_head(line, family)
            else:
                self.take_sample(line, family, openmetrics)
        for name, kind in self.types.items():
            if kind == "histogram":
                self.check_histogram(name)

    def take_head(self, line, family):
        what, name, rest = re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.+)", line).groups()
        if what == "HELP":
            assert name not in self.helps, f"{name} comes twice"
            assert rest.endswith("."), rest
            self.helps[name] = rest
        else:
            assert name not in self.types and name in self.helps, name
            assert rest in KINDS, line
            self.types[name] = rest
        return name

    def take_sample(self, line, family, openmetrics):
        name, labels, value = SAMPLE.fullmatch(line).groups()
        kind = self.types[family]
        suffixes = KINDS[kind] if openmetrics or kind == "histogram" else ("",)
        assert name in [family + s for s in suffixes], (line, family, kind)
        if kind == "counter":
            assert name.endswith("_total"), name
        labels = labels or ""
        names = re.findall(rf"(?:^|,)({NAME})=", labels)
        assert len(names) == len(set(names)), line
        key = (name, labels) if labels else name
        assert key not in self, f"{key} comes twice"
        self[key] = float(value)
        assert math.isfinite(self[key]) and (kind == "gauge" or self[key] >= 0), line

    def check_histogram(self, name):
        bounds = [(float(re.fullmatch(r'le="(.*)"', key[1])[1]), value)
                  for key, value in self.items() if key[0] == name + "_bucket"]
        assert len(bounds) > 5 and bounds[-1][0] == math.inf, name
        assert bounds == sorted(bounds), name  # both the bounds and the sums ascend
        assert bounds[-1][1] == self[name + "_count"], name

    def of(self, name):
        """{labels: value} of a name."""
        return {key[1]: value for key, value in self.items() if key[0] == name}
