// Package clients drives palyrad's /v1/ with the clients that OpenAI and Anthropic make, unchanged:
// openai-go here, npm's openai and @anthropic-ai/sdk in Node. The models are scripted ones, and one
// behind a server of the tests' own, which a cell asks over the network. The module is nested
// because of the client: nothing that ships links it.
package clients
