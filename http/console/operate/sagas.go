package operate

import "github.com/meterplex/meterplex/http/console"

const (
	sagasPath = console.Prefix + "/sagas"
	sagaPath  = sagasPath + "/{sagaId}"
)

func sagasPage() *console.Page {
	return &console.Page{Path: sagasPath, Title: "Background processes", Group: "Operations", Menu: "Background processes",
		Template: "sagas.html", Needs: "GET /api/v1/sagas",
		Params: []string{"tenantId", "kind", "state", "cursor"},
		CLI:    []string{"meterplex sagas list[ --kind {kind}][ --state {state}][ --tenant {tenantId}]"},
		Load: func(v *console.Visit) (console.Doc, error) {
			found, err := v.Main(console.API("sagas"), console.Limited(100, v.Pick("tenantId", "kind", "state", "cursor")))
			return console.Doc{"sagas": found}, err
		}}
}

func sagaPage() *console.Page {
	return &console.Page{Path: sagaPath, Title: "Background process", Template: "saga.html", Needs: "GET /api/v1/sagas/{sagaId}",
		CLI: []string{"meterplex sagas show {sagaId}"},
		Actions: []*console.Action{{Name: "retry-saga", Path: sagaPath + "/retry", Label: "Retry now",
			Does:   "POST /api/v1/sagas/{sagaId}/retry",
			Fields: []console.Field{{Name: "despite", Label: "No longer wait for"}}}}}
}
