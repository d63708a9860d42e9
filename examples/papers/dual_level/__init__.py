"""Parts of sc24.py: error-bounded compression whose bounds adapt by table and by iteration."""
