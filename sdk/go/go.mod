module github.com/meterplex/meterplex/sdk/go

go 1.24
