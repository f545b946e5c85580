package faulty

var handle int = "a string"
