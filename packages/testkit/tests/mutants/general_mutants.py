"""General plugins that are wrong in one way each; the functions are in `general_plugins.py`."""

import general_plugins as plugins
from contract import Contract

from modulm_testkit.general import GeneralPluginConformance

general = Contract("general", GeneralPluginConformance, "register", plugins.fine)
for test, function in {
    "test_runs": plugins.raises,
    "test_runs_again": plugins.runs_once,
    "test_imports_no_torch": plugins.imports_torch,
    "test_is_quick": plugins.sleeps,
    "test_prints_nothing": plugins.prints,
    "test_leaves_the_process_alone": plugins.sets_a_variable,
    "test_what_it_registers_is_there": plugins.registers_nothing_there,
}.items():
    general.mutant(test)(function)
