"""All rules that have an id: what `override.rules` may name, and what docs/configuration.md lists."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from controller.config import file_rules, kv_rules, pairing_rules, rules
from controller.config.rule_report import ListedRule
from engine_launch import atom_advice, atom_rules

# Title of a group in docs/configuration.md -> its rules, in the order in which they are checked.
RULE_GROUPS: Mapping[str, tuple[ListedRule, ...]] = MappingProxyType(
    {
        "The file": file_rules.FILE,
        "Options and environment": file_rules.ENGINE,
        "Ports": file_rules.PORTS,
        "Times": file_rules.TIMES,
        "Every engine": rules.SHARED,
        "vLLM and vLLM-Ascend": rules.RULES,
        "ATOM": tuple(atom_rules.RULES),
        "ATOM, advice": tuple(atom_advice.ADVICE),
        "KV transfer": kv_rules.RULES,
        "Prefill and decode as a pair": pairing_rules.RULES,
    }
)

RULES: Mapping[str, ListedRule] = MappingProxyType({rule.id: rule for group in RULE_GROUPS.values() for rule in group})
