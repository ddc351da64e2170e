"""Studies: the paper's tables as grids of runs that can be stopped, resumed and shared out at any time."""

from fedprompt.studies.cell import Cell
from fedprompt.studies.definition import study_names
from fedprompt.studies.finding import finished, planned
from fedprompt.studies.running import Result, run_study
from fedprompt.studies.study import Study, load_study

__all__ = ["Cell", "Result", "Study", "finished", "load_study", "planned", "run_study", "study_names"]
