module github.com/meterplex/meterplex/examples/llm-budget

go 1.24

require github.com/meterplex/meterplex/sdk/go v0.1.0

replace github.com/meterplex/meterplex/sdk/go => ../../sdk/go
