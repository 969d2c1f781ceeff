package console

const (
	sagasPath = Prefix + "/sagas"
	sagaPath  = sagasPath + "/{sagaId}"
)

func sagasPage() *page {
	return &page{path: sagasPath, title: "Sagas", menu: "Sagas", template: "sagas.html", needs: "GET /api/v1/sagas",
		params: []string{"tenantId", "kind", "state", "cursor"}, cli: []string{"meterplex sagas list[ --kind {kind}][ --state {state}][ --tenant-id {tenantId}]"},
		load: func(v *visit) (doc, error) {
			found, err := v.main(api("sagas"), limited(100, v.pick("tenantId", "kind", "state", "cursor")))
			return doc{"sagas": found}, err
		}}
}

func sagaPage() *page {
	return &page{path: sagaPath, title: "Saga", template: "saga.html", needs: "GET /api/v1/sagas/{sagaId}",
		cli: []string{"meterplex sagas show {sagaId}"},
		actions: []*action{{name: "retry-saga", path: sagaPath + "/retry", label: "Retry now", does: "POST /api/v1/sagas/{sagaId}/retry",
			fields: []field{{name: "despite", label: "No longer wait for"}}}}}
}
