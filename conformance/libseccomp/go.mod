module palyra/conformance/libseccomp

go 1.26.0

require palyra v0.0.0-00010101000000-000000000000

replace palyra => ../..
