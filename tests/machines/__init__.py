"""What the test machines of all kinds share: namespaces, cgroups, and a look at what they could leave behind."""
