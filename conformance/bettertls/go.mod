module palyra/conformance/bettertls

go 1.26.4

require (
	github.com/Netflix/bettertls v0.0.0-20250909192348-e1e99e353074
	palyra v0.0.0-00010101000000-000000000000
)

require github.com/google/uuid v1.6.0 // indirect

replace palyra => ../..
