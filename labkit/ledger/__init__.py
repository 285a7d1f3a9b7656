"""How the claim ledger works inside; `labkit.claims` is its public face."""
