"""Simulators written in JAX, compiled with the learner: MuJoCo Playground (playground, playground_tasks), environments
of users' own (own; single: one of them, whatever it is made with; check: what `check-env` asks), and `stepwise`, which
puts any of them behind the host contract."""
