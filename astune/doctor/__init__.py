"""`astune doctor`: looks for what would break a long run before it starts, and says how to mend it.

    findings = examine(Patient(Path("demo.yaml")))
    print(to_json(findings, "demo.yaml"))

It reads, renders and tries out; it never trains, never loads weights, and writes nothing.
"""

from astune.doctor.examine import examine
from astune.doctor.findings import Finding, Level, count
from astune.doctor.patient import Patient
from astune.doctor.show import show, to_json

__all__ = ["Finding", "Level", "Patient", "count", "examine", "show", "to_json"]
