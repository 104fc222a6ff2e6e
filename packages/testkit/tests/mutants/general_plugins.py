"""Functions of general plugins, right and wrong. Imports nothing, since a fresh process imports this for each."""


def fine():
    """Registers a kernel provider by string."""
    from modulm.plugins.registry import registry

    registry("modulm.kernels").register("mine", "modulm.reference.linear_torch:TorchKernels")


def raises():
    """The function raises."""
    raise RuntimeError("no device")


def runs_once():
    """The second call raises."""
    import builtins

    if hasattr(builtins, "modulm_ran"):
        raise RuntimeError("registered already")
    builtins.modulm_ran = True
    fine()


def imports_torch():
    """A module called torch is imported."""
    import sys
    import types

    sys.modules.setdefault("torch", types.ModuleType("torch"))


def sleeps():
    """It takes 0.6 s."""
    import time

    time.sleep(0.6)


def prints():
    """It greets on standard output."""
    print("plugin loaded")


def sets_a_variable():
    """It sets CUDA_VISIBLE_DEVICES."""
    import os

    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    fine()


def registers_nothing_there():
    """A reference leads nowhere."""
    from modulm.plugins.registry import registry

    registry("modulm.kernels").register("mine", "modulm_nowhere.kernels:Kernels")
