"""Result files of load generators turned into corpus rows, each with its own definitions and units."""
