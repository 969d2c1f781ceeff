package console

import (
	"cmp"
	"maps"
	"math/big"
	"net/url"
)

// Limited returns a query with the size of a page of the list.
func Limited(size int, query url.Values) url.Values {
	if query == nil {
		query = url.Values{}
	}
	query.Set("limit", Text(size))
	return query
}

// With adds a parameter to a query.
func With(q url.Values, name, value string) url.Values {
	if value != "" {
		q.Set(name, value)
	}
	return q
}

// Clone returns a copy of the parameters.
func Clone(of url.Values) url.Values {
	values := url.Values{}
	maps.Copy(values, of)
	return values
}

// Integer returns a number of an answer; 0 if it is absent.
func Integer(of any) *big.Int {
	n, _ := new(big.Int).SetString(Text(of), 10)
	return cmp.Or(n, new(big.Int))
}

// Object returns an entry of a list.
func Object(entry any) Doc {
	o, _ := entry.(map[string]any)
	return o
}

// Member returns a member of an object of the API; nil if it is absent.
func Member(of any, name string) any {
	switch of := of.(type) {
	case Doc:
		return of[name]
	case map[string]any:
		return of[name]
	}
	return nil
}
