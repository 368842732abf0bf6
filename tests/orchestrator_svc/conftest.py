"""How much the property tests of the orchestrator try, and that no wall clock judges them."""

from hypothesis import settings

settings.register_profile("orchestrator", deadline=None, max_examples=60)
settings.load_profile("orchestrator")
