"""The order in which the properties of an instance can be generated: RESPONSE FORMAT in
nvllm-protocol(7)."""
import itertools
import json
import re
import urllib.parse

MOST = 64  # orders of one value that are looked at
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


class Way:
    """A way in which a value can be an instance, by the alternatives that are chosen: names in the
    order of properties, those that are only required, and the schemas that hold."""

    def __init__(self, names=(), required=(), schemas=()):
        self.names, self.required, self.schemas = tuple(names), tuple(required), tuple(schemas)

    def key(self):
        return self.names, self.required, tuple(map(id, self.schemas))


def join(parts):
    """Of each part one way, all at once."""
    ways = (Way(*(itertools.chain(*lists) for lists in
                  zip(*((w.names, w.required, w.schemas) for w in chosen))))
            for chosen in itertools.islice(itertools.product(*parts), 4096))
    return list({w.key(): w for w in ways}.values())[:MOST]


def may_hold(schema, value):
    """False: the value is no instance, as one look tells."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, TYPES.get(kind, (int, float))) for kind in kinds):
        return False
    if "enum" in schema:
        return value in schema["enum"]
    if not isinstance(value, dict):
        return True
    names, required = schema.get("properties", {}), schema.get("required")
    if isinstance(required, list) and not set(required) <= set(value):
        return False
    if schema.get("additionalProperties") is False and "patternProperties" not in schema \
            and not set(value) <= set(names):
        return False
    return all(value[name] in one["enum"] for name, one in names.items()
               if name in value and isinstance(one, dict) and "enum" in one)


def of_property(schema, name):
    """What one schema says of a property."""
    own = [schema["properties"][name]] if name in schema.get("properties", {}) else []
    own += [one for pattern, one in schema.get("patternProperties", {}).items()
            if re.search(pattern, name)]
    return own or [schema.get("additionalProperties", True)]


def of_element(schema, i):
    items, prefix = schema.get("items", True), schema.get("prefixItems", [])
    if isinstance(items, list):
        items, prefix = schema.get("additionalItems", True), items
    return [prefix[i] if i < len(prefix) else items]


class Orders:
    """Of the instances of a schema."""

    def __init__(self, schema):
        self.root = schema
        self.refs_alone = bool(re.search("draft-0[3-7]", str(schema.get("$schema"))))

    def resolve(self, ref):
        at = self.root
        for step in ref.partition("#")[2].split("/")[1:]:
            step = urllib.parse.unquote(step).replace("~1", "/").replace("~0", "~")
            at = at[int(step)] if isinstance(at, list) else at[step]
        return at

    def ways(self, schema, value, above=()):
        """The schemas above are not entered again."""
        if not isinstance(schema, dict) or id(schema) in above:
            return [Way()]
        above, ref, parts, last = (*above, id(schema)), schema.get("$ref"), [], []
        if isinstance(ref, str):
            parts.append(self.ways(self.resolve(ref), value, above))
            if self.refs_alone:
                return parts[0]
        if not may_hold(schema, value):
            return []
        for keyword, v in schema.items():
            if keyword == "properties":
                parts.append([Way(v)])
            elif keyword == "allOf":
                parts += [self.ways(one, value, above) for one in v]
            elif keyword in ("anyOf", "oneOf"):
                parts.append([w for one in v for w in self.ways(one, value, above)])
            elif keyword == "if":
                last.append(join([self.ways(v, value, above),
                                  self.ways(schema.get("then"), value, above)])
                            + self.ways(schema.get("else"), value, above))
            elif keyword in ("dependencies", "dependentSchemas") and isinstance(value, dict):
                last += [self.ways(one, value, above) for name, one in v.items() if name in value]
        required = schema.get("required")
        own = Way(required=required if isinstance(required, list) else (), schemas=[schema])
        return join([[own], *parts, *last])

    def of(self, value, schemas):
        """The value with its properties in each order that may be meant."""
        if not isinstance(value, (dict, list)):
            return [value]
        found = {}
        for way in join([self.ways(schema, value) for schema in schemas]):
            if isinstance(value, dict):
                keys = [k for k in dict.fromkeys((*way.names, *way.required, *value)) if k in value]
                parts = [self.of(value[k], [one for s in way.schemas for one in of_property(s, k)])
                         for k in keys]
            else:
                parts = [self.of(v, [one for s in way.schemas for one in of_element(s, i)])
                         for i, v in enumerate(value)]
            for chosen in itertools.islice(itertools.product(*parts), MOST):
                one = dict(zip(keys, chosen)) if isinstance(value, dict) else list(chosen)
                found.setdefault(json.dumps(one), one)
        return list(found.values())[:MOST]
