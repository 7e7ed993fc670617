"""The checks of an audit, by what they look at; `scoring.audit` runs them all."""
