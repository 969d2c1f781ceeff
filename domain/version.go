package domain

// Version is the version of Meterplex: that of the API's description, the chart, the SDKs and the newest section of CHANGELOG.md. Instances
// of one version may be of several commits, which they name themselves.
const Version = "0.1.0"
