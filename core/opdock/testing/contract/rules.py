"""Every rule of the check."""

from __future__ import annotations

from opdock.testing.contract.findings import ERROR, NOTE, WARNING, Rule

_TABLE = (
    # files
    ("unreadable-file", WARNING, "A file of the package cannot be read as Python source; nothing in it is checked."),
    # metadata
    ("entry-point-none", ERROR, "Without an entry point in a group that opdock reads, no code of the package runs."),
    ("entry-point-value", ERROR, "An entry point is 'name = package.module:attribute'."),
    ("entry-point-dangling", ERROR, "The module that an entry point names must be one that the package ships."),
    ("entry-point-attribute", ERROR, "The module must have the attribute that the entry point names."),
    ("entry-point-reserved", ERROR, "A plugin named cpu, cuda, rocm, tpu or xpu breaks vLLM when it declines."),
    ("entry-point-taken", WARNING, "Two installed distributions with one entry-point name: neither is used."),
    ("group-misspelt", ERROR, "A group whose name nothing reads is a dead declaration."),
    ("metadata-unreadable", WARNING, "Metadata that cannot be read, or that only running code would tell."),
    ("requirement-missing", ERROR, "opdock runs no code of a distribution that does not require opdock."),
    ("requirement-unbounded", WARNING, "A requirement on opdock with both bounds says what the package was made for."),
    ("requirement-excludes", ERROR, "A requirement that excludes the running opdock keeps the package from running."),
    ("torch-pinned", WARNING, "A package that pins torch exactly can be installed beside few others."),
    # register() and the platform class
    ("register-answers-vllm", WARNING, "A register() that answers to every host changes what vLLM does."),
    ("register-unconditional", WARNING, "A register() that never declines takes machines without the device."),
    ("register-value", ERROR, "register() returns a class path as text, or None."),
    ("class-path", ERROR, "The class path that register() returns must lead to a class of the package."),
    ("platform-base", ERROR, "A platform class is a subclass of opdock.Platform."),
    ("platform-enum", ERROR, "_enum is a member of PlatformEnum; it decides which method a layer binds."),
    ("platform-attribute", ERROR, "device_name, device_type and dispatch_key are strings that are not empty."),
    ("dispatch-key", ERROR, "dispatch_key is the torch.library key of the device's tensors."),
    ("api-version", ERROR, "api_version states the interface that the class was written for."),
    ("hook-unknown", WARNING, "A method whose name is close to a hook's, and is none, is never called."),
    ("hook-removed", WARNING, "A hook of earlier hosts that nothing calls any more."),
    ("hook-signature", ERROR, "A hook must take what the host passes."),
    ("hook-not-classmethod", ERROR, "The host calls the hook on the class; without @classmethod, self is missing."),
    ("hook-not-callable", ERROR, "The host calls the hook: an attribute or a property cannot be called."),
    # op classes
    ("replacement-target", ERROR, "A replacement of a class that does not exist is never built."),
    ("replacement-dead", ERROR, "A replacement without the method that its platform binds does nothing."),
    ("replacement-forward", ERROR, "A CustomOp's forward is the dispatch; a class that defines it is refused."),
    ("replacement-signature", ERROR, "A replacement's method must take what the in-tree one's callers pass."),
    ("replacement-constructor", ERROR, "A replacement is built with the arguments of the class that it replaces."),
    ("replacement-twice", ERROR, "One class can have one replacement."),
    # IR ops
    ("ir-op-unknown", ERROR, "No IR op has the name."),
    ("provider-name", ERROR, "Provider names are lower-case, and not native or unfused."),
    ("provider-signature", ERROR, "A provider has the parameters of the native definition: names, types, defaults."),
    ("provider-predicate", ERROR, "supports_args has the parameters of the native definition."),
    ("provider-twice", ERROR, "A provider name can be registered once for an op."),
    ("provider-inplace", ERROR, "inplace=True needs an op that allows it."),
    ("provider-unlisted", WARNING, "A provider that no priority lists is never tried."),
    ("provider-shadowed", WARNING, "A provider behind one that takes any arguments is never tried."),
    ("priority-unknown", ERROR, "A priority that names a provider which nobody registers cannot be put in force."),
    ("predicate-reads-data", ERROR, "supports_args sees fake tensors, which have no data and no addresses."),
    ("op-both", NOTE, "A replacement and a provider for one op: which of them runs depends on how the op is reached."),
    # hooks of packages in opdock.plugins
    ("hookimpl-unknown", ERROR, "A hookimpl that no hookspec has keeps the whole package out."),
    ("hookimpl-argument", ERROR, "A hookimpl takes some of its hookspec's arguments, and no others."),
    ("hookimpl-none", WARNING, "An entry point in opdock.plugins whose module marks no function does nothing."),
    # imports and side effects
    ("import-heavy", WARNING, "Every installed platform's entry module is imported on every machine: keep it light."),
    (
        "import-reentry",
        ERROR,
        "The entry module is imported while the platform is being decided: it cannot ask for it.",
    ),
    ("import-environ", WARNING, "A change of the environment reaches every package and child of the process."),
    ("monkeypatch", WARNING, "A change to another package's objects reaches everybody, and breaks when it changes."),
    ("rewrites-files", WARNING, "Files of another package that are rewritten stay so, for every user of them."),
    ("exits", ERROR, "A plugin that ends the process takes the machine from the packages that would run."),
    # --run
    ("run-failed", ERROR, "It raised."),
    ("run-timeout", ERROR, "It did not end in time."),
    ("run-exited", ERROR, "It ended the process."),
    ("run-imports-torch", WARNING, "Asking a platform should not import torch: it costs every process seconds."),
    ("run-device", ERROR, "Asking must not initialise a driver: a process that forks later cannot use the device."),
    ("run-environ", WARNING, "It changed the environment."),
    ("run-threads", WARNING, "It left threads running."),
    ("run-output", NOTE, "It printed."),
    ("run-measured", NOTE, "What importing it and asking it cost."),
    ("run-declined", NOTE, "It declined on this machine, so nothing was activated."),
    # packages written for vLLM
    ("port-requirement", NOTE, "What the metadata of a port says."),
    ("port-register", NOTE, "What register() of a port says."),
    ("port-import", NOTE, "A name of vLLM that the package imports, and what it is called here."),
    ("port-hook", NOTE, "An overridden member of the platform class, and who calls it here."),
    ("port-replacement", NOTE, "A class of vLLM that the package replaces, and what it is called here."),
)

RULES = {name: Rule(f"opdock/{name}", level, text) for name, level, text in _TABLE}
"""By the id without ``opdock/``."""
