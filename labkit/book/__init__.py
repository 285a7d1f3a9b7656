"""The book's Sphinx extension: numbers with their evidence, generated tables, executed notebooks, nothing from outside.

    evidence.py   the five kinds of evidence a number can have
    values.py     JSON value + format -> text
    calc_call.py  the expression of a {calc} role, evaluated without eval
    sources.py    ledger, records, formulas and hardware, read once a build
    lookup.py     text of a role -> Number
    roles.py      {claim}, {run}, {calc}, {hw}
    directives.py {claim-ledger}, {errata}, {hardware-table}, {formula-sheet}, {run-list}, {status}, {flow} and more;
                  their content comes from ledger_page, hardware_page, formula_sheet, reports, flow
    drawing.py    {drawing}: a figure that a function of labkit.plots computes
    executed.py   hands MyST-NB the executed copy of a notebook
    plotly_mime.py, vendor.py, offline.py   figures and scripts from this site only

A wrong id, a missing field or a bad format is a Sphinx warning; `-W` makes it a failed build.
"""

from __future__ import annotations

from typing import Any


def setup(app: Any) -> dict[str, Any]:
    """Register roles, directives and hooks with a Sphinx application."""
    from labkit.book import directives, executed, offline, roles, sources, vendor

    app.add_config_value("labkit_executed_dir", "", "env", [str])
    app.connect("builder-inited", sources.on_builder_inited)
    roles.setup(app)
    directives.setup(app)
    executed.setup(app)
    vendor.setup(app)
    offline.setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
