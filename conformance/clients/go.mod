module palyra/conformance/clients

go 1.26.0

require (
	github.com/openai/openai-go/v3 v3.8.1
	palyra v0.0.0-00010101000000-000000000000
)

require (
	github.com/tidwall/gjson v1.20.0 // indirect
	github.com/tidwall/match v1.1.1 // indirect
	github.com/tidwall/pretty v1.2.1 // indirect
	github.com/tidwall/sjson v1.2.5 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace palyra => ../..
