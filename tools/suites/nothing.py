"""Makes a folder of tests a package."""
