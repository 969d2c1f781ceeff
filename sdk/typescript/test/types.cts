// The same types for CommonJS.
import meterplex = require('meterplex')

const client: meterplex.Meterplex = new meterplex.Meterplex({ url: 'https://meterplex.example', key: 'mp_test_…', memory: true })
void client.close()
