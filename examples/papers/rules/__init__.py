"""Rules: functions from the records of a study to a verdict, which claims choose by name."""
