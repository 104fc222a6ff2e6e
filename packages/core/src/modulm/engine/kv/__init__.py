"""KV cache accounts: which sequence holds which physical block. Knows counts and hashes of ids, never tensors."""
