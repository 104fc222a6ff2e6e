"""Tool parsers for modulm: one small file per format over one way to read values; knows no server and no model."""
