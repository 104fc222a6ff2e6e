"""int8 weights: experts_int8, int8_per_channel_weight_only, W8A8."""
