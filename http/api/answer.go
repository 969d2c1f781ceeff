package api

import "github.com/google/uuid"

// Answer is the body of an answer.
type Answer[T any] struct{ Body T }

// AnswerOf answers with a result, or its error.
func AnswerOf[T any](found T, err error) (*Answer[T], error) { return &Answer[T]{found}, err }

// AnswerAs answers with the wire format of a result, or its error.
func AnswerAs[T, B any](of func(*T) B) func(found T, err error) (*Answer[B], error) {
	return func(found T, err error) (*Answer[B], error) { return AnswerOf(of(&found), err) }
}

// Accepted answers a request whose work continues.
type Accepted[T any] struct {
	Location string `header:"Location" doc:"Where the progress is read."`
	Body     T
}

// AcceptedSaga answers a request that started a saga, or continued it.
func AcceptedSaga[T any](saga uuid.UUID, body T, err error) (*Accepted[T], error) {
	return &Accepted[T]{Prefix + "/sagas/" + saga.String(), body}, err
}
